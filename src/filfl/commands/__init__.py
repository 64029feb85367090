"""The commands behind the command line. Each module imports only what its command needs."""
