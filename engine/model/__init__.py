"""Model families, their weights and layers."""
