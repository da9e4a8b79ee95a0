"""What is shown: pages and pictures, from JSON alone."""
