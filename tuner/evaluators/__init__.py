"""What runs one configuration and measures it."""
