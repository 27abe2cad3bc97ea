"""Groups: agents that work together on a message, by a coordination that is executed and survives restarts."""
