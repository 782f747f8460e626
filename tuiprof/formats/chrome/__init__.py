"""Decodes the Trace Event JSON that Kineto, JAX, msprof, rocprof and many others write."""
