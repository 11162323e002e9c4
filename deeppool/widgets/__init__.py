"""Records and runs as interactive widgets in a notebook."""
