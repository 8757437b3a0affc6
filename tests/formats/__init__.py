"""Data directories that earlier versions wrote: this one reads them, and goes on."""
