"""transformers, and PEFT (a development package, imported only here), on the very weights of our base."""
import tempfile
from pathlib import Path

import torch

import rl
from bench.common import timed
from bench.workload import POP, batch_of
from generate import Rollout
from lora import Adapters
from model import Base, ModelConfig
from weights import save_peft


def qwen2(cfg: ModelConfig):
    """The transformers configuration of a random model of this shape."""
    from transformers import AutoConfig
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "head_dim", "rms_norm_eps", "max_position_embeddings",
            "tie_word_embeddings")
    rope = dict(rope_type="default", rope_theta=cfg.rope_theta)
    return AutoConfig.for_model("qwen2", **{name: getattr(cfg, name) for name in same}, rope_parameters=rope)


def transformers_twin(base: Base):
    """transformers' model of a base; its parameters are the base's own tensors and take no memory."""
    from transformers import AutoConfig, AutoModelForCausalLM
    config = AutoConfig.from_pretrained(base.path) if base.tokenizer else qwen2(base.model.cfg)
    weights = base.model.state_dict()
    if base.model.cfg.tie_word_embeddings:
        weights["lm_head.weight"] = base.model.embedding
    with torch.device("meta"):
        twin = AutoModelForCausalLM.from_config(config, dtype=base.model.embedding.dtype)
    twin.load_state_dict(weights, assign=True)
    rotary = twin.model.rotary_emb              # its frequencies are no weights, and still on meta
    twin.model.rotary_emb = type(rotary)(config).to(base.model.embedding.device)
    return twin.requires_grad_(False).eval()


class Peers:
    """transformers, and PEFT with the same adapters."""

    def __init__(self, base: Base, adapters: Adapters):
        from peft import PeftModel
        self.plain = transformers_twin(base)
        with tempfile.TemporaryDirectory() as folder:
            for p in range(POP):
                save_peft(adapters, p, Path(folder, f"m{p}"), str(base.path))
            self.lora = PeftModel.from_pretrained(transformers_twin(base), f"{folder}/m0", "m0",
                                                  is_trainable=True)
            for p in range(1, POP):
                self.lora.load_adapter(f"{folder}/m{p}", f"m{p}", is_trainable=True)
        self.lora.eval()

    def decoder(self, model, prompts: list[list[int]], new: int, names: list[str] | None = None,
                active: str = ""):
        """A function that samples with Hugging Face's generate at temperature 1 and returns its seconds."""
        ids = torch.tensor(prompts, device=model.device)
        mixed = dict(adapter_names=names) if names else {}

        @timed
        @torch.inference_mode()
        def run() -> None:
            if active:
                model.set_adapter(active)
            out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0,
                                 max_new_tokens=new, min_new_tokens=new, eos_token_id=None, pad_token_id=0,
                                 **mixed)
            assert out.shape[1] == ids.shape[1] + new
        return run

    def updater(self, rollout: Rollout):
        """A function that accumulates as workload.updater does, member after member; returns its seconds."""
        prompt = int(rollout.prompt_len[0])
        weight = batch_of(rollout)[1] * rl.token_weight(rollout)

        @timed
        def run() -> None:
            self.lora.zero_grad()
            for p in rollout.member.unique().tolist():
                rows = (rollout.member == p).nonzero().squeeze(1)
                self.lora.set_adapter(f"m{p}")
                ids = rollout.ids[rows]
                logits = self.lora(input_ids=ids).logits[:, prompt - 1:-1].float()
                logp = logits.log_softmax(-1).gather(-1, ids[:, prompt:, None]).squeeze(-1)
                (-(logp * weight[rows, None])).sum().backward()
        return run

    def gradient(self, path: str, side: str, p: int) -> torch.Tensor:
        """Member p's, of one factor of one layer."""
        factors = dict(self.lora.named_parameters())
        return factors[f"base_model.model.{path}.lora_{side}.m{p}.weight"].grad
