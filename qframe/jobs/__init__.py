"""What a user writes.

Job classes and functions, their options and fields, and where their classes are found.
"""
