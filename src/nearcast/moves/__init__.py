"""What changes when subscribers move: differences, and fences that delay some of them."""
