"""Every family of transformers' attention: its heads give back its own logits and outputs."""

import pytest
import torch
from forward_proof import prove
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel

TINY = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 32,
    "vocab_size": 50,
    "max_position_embeddings": 64,
    "attn_implementation": "eager",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 16}  # 4 heads of size 16 on 32: not 32 / 4
IMAGE = {"image_size": 16, "patch_size": 8, "num_channels": 3}
TEXT = torch.randint(3, 50, (2, 6), generator=torch.Generator().manual_seed(0))
PIXELS = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def text(model):
    return model(input_ids=TEXT)


def image(model):
    return model(pixel_values=PIXELS)


def both(model):
    return model(input_ids=TEXT, decoder_input_ids=TEXT[:, :4])


def speech(model):
    return model(input_features=torch.randn(2, 8, 20, dtype=torch.float64), decoder_input_ids=TEXT[:, :4])


def crossed(model):
    return model(input_ids=TEXT, encoder_hidden_states=torch.randn(2, 5, 32, dtype=torch.float64))


def audio(model):
    return model(torch.randn(2, 200, dtype=torch.float64))


def film(model):
    return model(pixel_values=torch.stack([PIXELS, PIXELS.flip(-1)], dim=1))


CROSSED = {"is_decoder": True, "add_cross_attention": True}


LATENT = {
    "q_lora_rank": 6,
    "kv_lora_rank": 5,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 3,
    "v_head_dim": 7,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
}

# family: attention layers in the tiny model, its inputs, what its configuration needs
FAMILIES = {
    "gpt2": (1, text, {}),
    "gpt2 crossed": (2, crossed, CROSSED),
    "gpt2 by layer": (3, text, {"num_hidden_layers": 3, "scale_attn_by_inverse_layer_idx": True}),
    "openai-gpt": (1, text, {}),
    "imagegpt": (1, text, {"hidden_size": 64}),  # heads of size 16: some versions cut the root to an integer
    "gpt_neo": (1, text, {"attention_types": [[["global"], 1]], "num_layers": 1, "num_heads": 4}),
    "gptj": (1, text, {"rotary_dim": 4}),
    "codegen": (1, text, {"rotary_dim": 4}),
    "gpt_neox": (1, text, {}),
    "gpt_neox_japanese": (1, text, {"intermediate_multiple_size": 1}),
    "gpt_bigcode": (1, text, {"multi_query": True}),
    "gpt_bigcode heads": (1, text, {"multi_query": False}),
    "bloom": (1, text, {}),
    "falcon": (1, text, {"new_decoder_architecture": True, "num_kv_heads": 2}),
    "falcon one key": (1, text, {"new_decoder_architecture": False, "multi_query": True}),
    "falcon heads": (1, text, {"new_decoder_architecture": False, "multi_query": False}),
    "mpt": (1, text, {"d_model": 32, "n_heads": 4, "n_layers": 1}),
    "opt": (1, text, {"ffn_dim": 32, "word_embed_proj_dim": 32}),
    "persimmon": (1, text, {}),
    "llama": (1, text, GROUPED),
    "mistral": (1, text, GROUPED),
    "deepseek_v2": (1, text, LATENT),
    "deepseek_v3": (1, text, LATENT | {"attention_bias": True}),
    "deepseek_v3 whole queries": (1, text, LATENT | {"q_lora_rank": None}),
    "minicpm3": (1, text, LATENT),
    "qwen2": (1, text, {"num_key_value_heads": 2}),
    "qwen3": (1, text, GROUPED),
    "gemma": (1, text, GROUPED),
    "gemma2": (1, text, GROUPED | {"attn_logit_softcapping": None, "query_pre_attn_scalar": 10}),
    "gemma3_text": (1, text, GROUPED),
    "olmo": (1, text, {"num_key_value_heads": 2}),
    "olmo2": (1, text, {"num_key_value_heads": 2}),
    "cohere": (1, text, {"num_key_value_heads": 2}),
    "granite": (1, text, {"num_key_value_heads": 2, "attention_multiplier": 0.3}),
    "phi": (1, text, {"num_key_value_heads": 2}),
    "phi3": (1, text, {"num_key_value_heads": 2}),
    "stablelm": (1, text, {"num_key_value_heads": 2}),
    "starcoder2": (1, text, {"num_key_value_heads": 2}),
    "glm": (1, text, GROUPED),
    "gpt_oss": (
        1,
        text,
        GROUPED
        | {
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "experts_implementation": "eager",
            "layer_types": ["full_attention"],
        },
    ),
    "bert": (1, text, {}),
    "bert crossed": (2, crossed, CROSSED),
    "roberta": (1, text, {}),
    "electra": (1, text, {"embedding_size": 32}),
    "albert": (1, text, {"embedding_size": 32}),
    "distilbert": (1, text, {"dim": 32, "n_heads": 4, "n_layers": 1, "hidden_dim": 32}),
    "modernbert": (1, text, {}),
    "xlm": (1, text, {"emb_dim": 32, "n_layers": 1, "n_heads": 4}),
    "esm": (1, text, {"position_embedding_type": "rotary", "mask_token_id": 3}),
    "mobilebert": (1, text, {"embedding_size": 32, "intra_bottleneck_size": 32, "true_hidden_size": 32}),
    "deberta-v2": (1, text, {}),
    "t5": (3, both, {"d_model": 32, "d_kv": 16, "num_layers": 1, "num_heads": 4, "d_ff": 32}),
    "bart": (
        3,
        both,
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
        },
    ),
    "whisper": (
        3,
        speech,
        {
            "d_model": 32,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 2,
            "num_mel_bins": 8,
            "max_source_positions": 10,
            "decoder_start_token_id": 3,
        },
    ),
    "qwen3_next": (
        1,
        text,
        GROUPED | {"layer_types": ["full_attention"], "num_experts": 0, "mlp_only_layers": [0]},
    ),
    "ctrl": (1, text, {"n_embd": 32, "dff": 32, "n_layer": 1, "n_head": 4}),
    "wav2vec2": (
        1,
        audio,
        {
            "conv_dim": [8, 8],
            "conv_stride": [5, 4],
            "conv_kernel": [10, 8],
            "num_feat_extract_layers": 2,
            "num_conv_pos_embeddings": 4,
            "num_conv_pos_embedding_groups": 2,
        },
    ),
    "videomae": (1, film, IMAGE | {"num_frames": 2, "tubelet_size": 2}),
    "vit": (1, image, IMAGE),
    "deit": (1, image, IMAGE),
    "dinov2": (1, image, IMAGE),
    "dinov3_vit": (1, image, IMAGE),
    "beit": (1, image, IMAGE),
    "clip_vision_model": (1, image, IMAGE),
    "internvl_vision": (1, image, IMAGE | {"image_size": [16, 16], "patch_size": [8, 8]}),
    "siglip_vision_model": (1, image, IMAGE | {"vision_use_head": False}),
    "swin": (
        2,
        image,
        IMAGE
        | {
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [1, 1],
            "num_attention_heads": [2, 4],
            "window_size": 4,
        },
    ),
    "segformer": (
        1,
        image,
        {
            "depths": [1],
            "hidden_sizes": [32],
            "num_attention_heads": [4],
            "num_encoder_blocks": 1,
            "sr_ratios": [1],
        },
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_give_back_the_forward_pass(family):
    expected, run, needs = FAMILIES[family]
    wants = {name: value for name, value in (TINY | needs).items() if value is not ...}
    if family.split()[0] not in CONFIG_MAPPING:
        pytest.skip("this version of transformers does not have it")
    config = AutoConfig.for_model(family.split()[0], **wants)
    prove(AutoModel.from_config(config), run, expected)
