"""What the commands do, behind the command line's parsing. Each imports only what it needs."""
