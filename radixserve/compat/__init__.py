"""Other libraries' names on top of our frontend."""
