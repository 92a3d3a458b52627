"""The server of the template `code-interpreter-v1`: it runs code in Jupyter kernels."""
