"""What runs in the processes of the sandbox. Standard library only, and nothing of Coevolve outside this folder: the
servers load it by path, under another name. Of it only ``wire`` and ``confine``'s facts are used by the trainer too."""
