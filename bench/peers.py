"""transformers, and PEFT (a development package, imported only here), on the very weights of our base."""
import tempfile
from pathlib import Path

import torch

import rl
from bench.common import timed
from bench.workload import POP, batch_of
from generate import Rollout
from lora import Adapters
from model import Base
from weights import save_peft


def transformers_twin(base: Base):
    """transformers' model of a base; its parameters are the base's own tensors and take no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM
    config, weights = AutoConfig.from_pretrained(base.path), base.model.state_dict()
    if base.model.cfg.tie_word_embeddings:
        weights["lm_head.weight"] = base.model.embedding
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(config, dtype=base.model.embedding.dtype)
    twin.load_state_dict(weights, assign=True)
    rotary = twin.model.rotary_emb              # its frequencies are no weights, and still on meta
    twin.model.rotary_emb = type(rotary)(config).to(base.model.embedding.device)
    return twin.requires_grad_(False).eval()


class Peers:
    """PEFT with the same adapters."""

    def __init__(self, base: Base, adapters: Adapters):
        from peft import PeftModel
        with tempfile.TemporaryDirectory() as folder:
            for p in range(POP):
                save_peft(adapters, p, Path(folder, f"m{p}"), str(base.path))
            twin = transformers_twin(base)
            self.model = PeftModel.from_pretrained(twin, f"{folder}/m0", "m0", is_trainable=True)
            for p in range(1, POP):
                self.model.load_adapter(f"{folder}/m{p}", f"m{p}", is_trainable=True)
        self.model.eval()

    def decoder(self, prompts: list[list[int]], members: list[int], new: int):
        """A function that samples at temperature 1 in one batch of mixed members and returns its seconds."""
        ids = torch.tensor(prompts, device=self.model.device)

        @timed
        @torch.inference_mode()
        def run() -> None:
            out = self.model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), adapter_names=[f"m{p}" for p in members],
                do_sample=True, top_k=0, max_new_tokens=new, min_new_tokens=new, eos_token_id=None,
                pad_token_id=0)
            assert out.shape[1] == ids.shape[1] + new
        return run

    def updater(self, rollout: Rollout):
        """A function that accumulates as workload.updater does, member after member; returns its seconds."""
        prompt = int(rollout.prompt_len[0])
        weight = batch_of(rollout)[1] * rl.token_weight(rollout)

        @timed
        def run() -> None:
            self.model.zero_grad()
            for p in rollout.member.unique().tolist():
                rows = (rollout.member == p).nonzero().squeeze(1)
                self.model.set_adapter(f"m{p}")
                ids = rollout.ids[rows]
                logits = self.model(input_ids=ids).logits[:, prompt - 1:-1].float()
                logp = logits.log_softmax(-1).gather(-1, ids[:, prompt:, None]).squeeze(-1)
                (-(logp * weight[rows, None])).sum().backward()
        return run
