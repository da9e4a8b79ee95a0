"""Pages and pictures, from JSON alone."""
