"""Names in Hugging Face's files of the parts of transformers with rotary positions.

Source: in transformers 5 ``LlamaForCausalLM``, ``Qwen2ForCausalLM``, ``Qwen3ForCausalLM``,
``Gemma2ForCausalLM``, ``Gemma3ForCausalLM``, ``T5GemmaForConditionalGeneration`` and
``T5Gemma2ForConditionalGeneration`` with their configs. Of the last the text's part is read, the
vision tower is not.
"""

from specdec.checkpoints.families.base import Family
from specdec.checkpoints.families.rotary.config_json import NAMES, format_config, parse_config
from specdec.checkpoints.families.rotary.parameters import all_parameters, open_parameters
from specdec.models.rotary import network
from specdec.models.rotary.config import RotaryConfig
from specdec.models.rotary.model import RotaryModel

FAMILY = Family(
    config=RotaryConfig,
    network=network,
    model=RotaryModel,
    model_types={
        "llama": "2 and 3",
        "qwen2": "Qwen 2.5",
        "qwen3": "",
        "gemma2": "",
        "gemma3_text": "270M and 1B",
        "t5gemma": "",
        "t5gemma2": "without images",
    },
    public={
        "t5gemma-2-SIZE-SIZE*": "t5gemma2_SIZE_SIZE",
        "t5gemma-SIZE-SIZE*": "t5gemma_SIZE_SIZE",
        "gemma-2-SIZE*": "gemma2_SIZE",
        "gemma-3-SIZE*": "gemma3_SIZE",
        "Llama-3.1-SIZE*": "llama3_SIZE",
        "Llama-3.2-SIZE*": "llama3_SIZE",
        "Qwen2.5-SIZE*": "qwen2_5_SIZE",
        "Qwen3-SIZE*": "qwen3_SIZE",
    },
    tokenizer_class=None,
    parse_config=parse_config,
    names={
        **NAMES,
        "tied_logits": "tie_word_embeddings",
        "trained_positions": "max_position_embeddings",
        "query_scalar": "query_pre_attn_scalar",
        "attention_softcap": "attn_logit_softcapping",
        "logits_softcap": "final_logit_softcapping",
        "window": "sliding_window",
        "base": "rope_theta",
        "low": "low_freq_factor",
        "high": "high_freq_factor",
        "original": "original_max_position_embeddings",
    },
    format_config=format_config,
    all_parameters=all_parameters,
    open_parameters=open_parameters,
)
