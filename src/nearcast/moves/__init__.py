"""What changed because somebody moved? Differences, and fences that hold some of them back."""
