"""One engine on several devices: how ranks talk, where each stands, and who starts and watches them."""
