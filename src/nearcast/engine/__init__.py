"""The parts composed: the broker, and how it publishes, registers, locks and is saved."""
