"""What is put into a sandbox and runs there: it has the standard library and nothing else.

Nothing of it runs in a scoring process, and nothing here can be secret to a program but what the
checker's own sandbox keeps.
"""
