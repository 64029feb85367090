"""The config of a run: its schema, sections and plug-ins, and the experiment files that vary it."""
