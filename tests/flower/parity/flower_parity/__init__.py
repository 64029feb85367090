"""An app that trains as the simulator does, to compare the decisions of both."""
