"""What tuiprof needs of the operating system: processes, memory, threads, whole files."""
