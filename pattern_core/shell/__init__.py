"""Commands on this machine: checked before they run, confined while they run, and completely ended afterwards."""
