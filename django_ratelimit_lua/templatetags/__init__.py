"""Filters of the templates: numbers, moments and names in words.

They are functions of lower rooms, which it imports. It does not know the pages that use them.
"""
