"""Power caps and clock locks that are always put back."""
