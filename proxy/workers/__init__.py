"""Workers: several active servers on one machine, which a supervisor starts, watches and stops."""
