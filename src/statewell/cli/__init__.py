"""The command line: one file per verb, each importing what it needs when it runs, so that `--help` and `plan` stay
quick."""
