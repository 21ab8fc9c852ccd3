"""The code that runs in the sandbox's processes. It uses only the standard library and this folder, because the servers
load it by path, under another name. The trainer also uses ``wire``, and a few functions and constants of the others."""
