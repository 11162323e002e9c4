"""The project's notebooks, run by papermill.

notebooks   finds, runs, converts and copies them
"""
