"""Providers of rented machines: the machine of a box is found by its instance's name, whatever its address is today.

``provider`` is the key of boxes.yaml, ``instances`` what is asked and kept, ``https`` one request, and each provider
has a file. Nothing is launched or terminated here.
"""
