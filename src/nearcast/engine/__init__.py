"""The broker, composed of parts, and how it publishes, registers, locks and is saved."""
