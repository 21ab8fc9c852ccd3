"""What runs in the processes of the sandbox. Standard library only, and nothing of Coevolve outside this folder: the
servers load it by path, under another name. Only ``split`` and ``wire`` are used by the trainer too."""
