"""The documentation as a site: what `mkdocs.yml` needs beside mkdocs."""
