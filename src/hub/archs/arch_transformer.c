#include "hub/archs.h"

const lnt_arch lnt_arch_transformer = {
    .model_type = "transformer",
    .class_name = "TransformerForCausalLM",
    .mixer = "attention",
    .base = &lnt_arch_fla,
};
