"""What the server keeps between calls: uploaded files and batches, in one folder.

database      SQLite in a thread of its own
data_folder   the folder: who may write it, where things lie
files         uploaded files and results
batches       batches and their states
"""
