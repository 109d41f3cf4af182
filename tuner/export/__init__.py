"""What a winner is handed over as."""
