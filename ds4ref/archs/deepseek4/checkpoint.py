"""Identifies which published checkpoint of DeepSeek V4 or V4.1 a file or folder contains: from its contents, or from
its name as the last resort.

    checkpoint_of(source)                         identify an open model
    release_of(source)                            only its name, for reports
    identify(config, tensors, encoding, name)     identify a published folder
    identify_gguf(metadata, tensors, name)        identify a GGUF file

Checkpoints differ in prompt template, drafter and some constants, so results of one must not be compared with those of
another. Published names, dates and differences: docs/explanation/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...weights.published import PublishedSource
from ...weights.source import DEEPSEEKS, architecture

if TYPE_CHECKING:
    from ...weights.source import TensorSource

MAY, JULY, V41 = "may", "0731", "v4.1"
"""Names of the prompt templates that checkpoints use (``text.official``)."""
PUBLISHED = {
    "preview": "preview (April 2026)",
    "dspark": "preview with the DSpark drafter (June 2026)",
    "0731": "0731",
    "0813": "0813",
    "vision-exp": "Vision-Exp (August 2026)",
    "v4.1": "(September 2026)",
}
_TEXTS = {"Beyond maximum": JULY, "Absolute maximum": MAY}
"""Phrase of the reasoning-effort prompts -> the prompt template that contains it; the first one found decides."""
_SCALE = "(range 1-100, the higher the value"
_DATES = {"0731": "0731", "0813": "0813", "vision-exp": "vision-exp", "v4.1": "v4.1", "v41": "v4.1", "dspark": "dspark"}
"""Part of a lower-case file name -> the release that it stands for; the first one found decides."""
MOST_FILES, MOST_BYTES = 8, 1 << 20
"""Maximum number of files that are read from a folder's ``encoding/``, and of bytes from each."""
_WIDTHS = {4096: "Flash", 5120: "Flash", 7168: "Pro"}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint of DeepSeek V4, as far as it could be identified.

    release  "preview", "dspark", "0731", "0813", "vision-exp" or "v4.1"; "": unknown
    size     "Flash" or "Pro"; "": a model of another width
    base     True if the checkpoint is not post-trained
    profile  its prompt template: "may", "0731" or "v4.1"
    drafter  "mtp" or "dspark"; "": the file contains none
    how      what release and template were inferred from
    sure     False if they were inferred only from a name, or from nothing
    """

    release: str = ""
    size: str = ""
    base: bool = False
    profile: str = MAY
    drafter: str = ""
    how: tuple[str, ...] = ()
    sure: bool = False

    @property
    def name(self) -> str:
        """Return the checkpoint's full name in one line, as reports show it."""
        words = [
            "DeepSeek V4.1" if self.release == "v4.1" else "DeepSeek V4",
            self.size,
            PUBLISHED.get(self.release, "of an unknown release"),
        ]
        return " ".join(filter(None, words)) + ", base" * self.base

    def facts(self) -> dict[str, Any]:
        """Return all fields and the full name, for reports."""
        return asdict(self) | {"name": self.name}


def checkpoint_of(source: TensorSource) -> Checkpoint:
    """Identify an open model of ``DEEPSEEKS``."""
    path = Path(source.path)
    if not isinstance(source, PublishedSource):
        return identify_gguf(source.metadata, source.tensors, path.name)
    checkpoint = source.checkpoint
    texts = []
    for file in sorted(checkpoint.folder.glob("encoding/*.py"))[:MOST_FILES]:
        with open(file, "rb") as stream:
            texts.append(stream.read(MOST_BYTES).decode("utf-8", "replace"))
    return identify(checkpoint.config, checkpoint.tensors, "\n".join(texts), checkpoint.folder.resolve().name)


def release_of(source: TensorSource) -> dict[str, str]:
    """Return {"checkpoint": name} for reports about a model; {} for another family or an unknown release."""
    checkpoint = checkpoint_of(source) if architecture(source) in DEEPSEEKS else None
    return {"checkpoint": checkpoint.name} if checkpoint is not None and checkpoint.release else {}


def identify(config: Mapping[str, Any], tensors: Collection[str], encoding: str = "", name: str = "") -> Checkpoint:
    """Identify a published folder from its config.json, tensor names, the text of its files in ``encoding/`` and its
    name."""
    text = config.get("text_config") or config
    kinds = [str(config.get("model_type", "")), *map(str, config.get("architectures") or ())]
    signs: list[tuple[str, str]] = []  # (release, what it was inferred from)
    if any("v41" in kind.lower().replace("_", "") for kind in kinds):
        signs.append(("v4.1", "model_type" if "41" in kinds[0] else "architectures"))
    if any(key.startswith("vision_") and value for key, value in text.items()):
        signs.append(("vision-exp", "vision_* in config.json"))
    elif any(tensor.endswith("ffn.gate.bias_vl") for tensor in tensors):
        signs.append(("vision-exp", "tensors bias_vl"))
    drafter = _drafter(any(key.startswith("dspark_") for key in text), tensors)
    profile = _profile(encoding, "encoding file")
    return _settle(signs, profile, drafter, name, text.get("hidden_size"))


def identify_gguf(metadata: Mapping[str, Any], tensors: Collection[str], name: str = "") -> Checkpoint:
    """Identify a GGUF file from its metadata, tensor names and file name."""
    architecture = str(metadata.get("general.architecture", ""))
    prefix = architecture + "."
    signs = []
    variant = str(metadata.get(prefix + "checkpoint_variant", ""))
    if variant:
        signs.append(("v4.1" if variant.startswith("v4.1") else variant, prefix + "checkpoint_variant"))
    if architecture.startswith("deepseek41"):
        signs.append(("v4.1", "general.architecture"))
    if metadata.get(prefix + "vision.sidecar_required") or any(
        tensor.endswith("exp_probs_b_vl.bias") for tensor in tensors
    ):
        signs.append(("vision-exp", "vision keys and tensors"))
    for key in ("general.base_model.0.version", "general.version"):
        signs += [(version, key) for version in ("0731", "0813") if version in str(metadata.get(key, ""))]
    profile = _profile(str(metadata.get("tokenizer.chat_template", "")), "chat template")
    names = [str(metadata.get(f"general.{key}", "")) for key in ("name", "basename", "base_model.0.name")]
    drafter = _drafter(any("dspark" in key for key in metadata), tensors)
    return _settle(signs, profile, drafter, " ".join([*names, name]), metadata.get(prefix + "embedding_length"))


def _profile(text: str, where: str) -> tuple[str, str] | None:
    if _SCALE in text:
        return V41, where
    return next(((profile, where) for words, profile in _TEXTS.items() if words in text), None)


def _drafter(declared: bool, tensors: Collection[str]) -> str:
    """Return which drafter a file contains besides the layers: "mtp", "dspark" or "" for none.

    declared: whether config or metadata have DSpark's keys.
    """
    block = [tensor for tensor in tensors if tensor.startswith("mtp.") or ".nextn." in tensor]
    if not block:
        return ""
    own = any("enorm" in tensor or "eh_proj" in tensor for tensor in block)
    return "dspark" if declared or not own else "mtp"


def _settle(
    signs: list[tuple[str, str]], profile: tuple[str, str] | None, drafter: str, name: str, width: Any
) -> Checkpoint:
    size = _WIDTHS.get(width, "")
    lower = name.lower()
    base = lower.rstrip("/").endswith("-base") or "-base-" in lower
    told = next((sign for sign in _DATES if sign in lower), None)
    if signs:
        release, how = signs[0]
        sure = True
    elif profile:
        after = "0813" if size == "Pro" else "0731"
        release = {MAY: "dspark" if drafter == "dspark" else "preview", JULY: after, V41: "v4.1"}[profile[0]]
        how, sure = profile[1], True
    elif told:
        release, how, sure = _DATES[told], "its name", False
    elif drafter == "mtp":  # no later release contains such a block
        release, how, sure = "preview", "the block for multi-token prediction", True
    else:
        release, how, sure = "", "", False
    if release not in PUBLISHED:
        release, sure = "", False
    own = {"preview": MAY, "dspark": MAY, "v4.1": V41}.get(release, JULY if release else MAY)
    chosen, by = profile or (own, how)
    hows = tuple(dict.fromkeys(filter(None, (how, by))))
    return Checkpoint(release, size, base, chosen, drafter, hows, sure)
