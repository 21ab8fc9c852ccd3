"""An engine of your own: a server in another process samples, with plain transformers, over HTTP.

``BaseEngine`` does what all engines do alike: prompts to ids, ids to turns. What is left is to sample, and to have new
weights taken over when ``publish`` returns. Were that forgotten, the gate before the next update would stop the run.
"""

import subprocess
import sys
import tempfile
from xmlrpc.client import ServerProxy
from xmlrpc.server import SimpleXMLRPCServer

from coevolve import BaseEngine, Sample


class HTTPEngine(BaseEngine):
    def __init__(self):  # keyword arguments would be keys of the recipe: engine: {name: engine_http.py:HTTPEngine, ...}
        super().__init__()
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.server = ServerProxy(f"http://127.0.0.1:{int(self.process.stdout.readline())}")

    def publish(self, news):
        super().publish(news)
        for new in news:
            with tempfile.TemporaryDirectory() as folder:
                new.save(folder)
                self.server.load(new.name, folder, sorted(new.eos), new.version)

    def sample(self, says):
        rows = {n: [(list(s.prompt_ids), s.sampling.length_range[1], str(s.key)) for s in says[n]] for n in says}
        return {name: [Sample(*row) for row in self.server.sample(name, rows[name])] for name in says}

    def close(self):
        self.process.communicate()  # it ends with its input


def drawn(model, eos, version, ids, most, key):  # at temperature 1, token by token, without a cache: it is a toy
    random, logps, start = torch.Generator().manual_seed(int(key) % (1 << 63)), [], len(ids)
    while len(logps) < most and not (logps and ids[-1] in eos):
        logp_V = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
        ids.append(int(torch.multinomial(logp_V.exp(), 1, generator=random)))
        logps.append(float(logp_V[ids[-1]]))
    return ids[start:], logps, ids[-1] in eos, 0.0, version


if __name__ == "__main__":  # the server
    import threading

    import torch
    from transformers import AutoModelForCausalLM, utils

    utils.logging.disable_progress_bar()
    models, server = {}, SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False, allow_none=True)
    get = AutoModelForCausalLM.from_pretrained
    take = lambda name, folder, *more: models.update({name: (get(folder).requires_grad_(False), *more)})  # noqa: E731
    server.register_function(take, "load")
    server.register_function(lambda name, rows: [drawn(*models[name], *row) for row in rows], "sample")
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()
