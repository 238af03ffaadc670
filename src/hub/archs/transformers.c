/* What Transformers writes into every config.json. */
#include "hub/archs.h"

#define BOOKKEEPING(key) LNT_KEPT(key, "bookkeeping")
#define GENERATION(key) LNT_KEPT(key, "a setting of generation, as configurations had them once")

static const lnt_arch_other others[] = {
    BOOKKEEPING("_name_or_path"), BOOKKEEPING("add_cross_attention"), BOOKKEEPING("architectures"), BOOKKEEPING("auto_map"),
    BOOKKEEPING("chunk_size_feed_forward"), BOOKKEEPING("cross_attention_hidden_size"), BOOKKEEPING("decoder_start_token_id"), BOOKKEEPING("dtype"),
    BOOKKEEPING("finetuning_task"), BOOKKEEPING("id2label"), BOOKKEEPING("is_decoder"), BOOKKEEPING("is_encoder_decoder"), BOOKKEEPING("label2id"),
    BOOKKEEPING("num_labels"), BOOKKEEPING("output_attentions"), BOOKKEEPING("output_hidden_states"), BOOKKEEPING("prefix"),
    BOOKKEEPING("problem_type"), BOOKKEEPING("pruned_heads"), BOOKKEEPING("return_dict"), BOOKKEEPING("sep_token_id"),
    BOOKKEEPING("task_specific_params"), BOOKKEEPING("tf_legacy_loss"), BOOKKEEPING("tie_encoder_decoder"), BOOKKEEPING("tokenizer_class"),
    BOOKKEEPING("torch_dtype"), BOOKKEEPING("torchscript"), BOOKKEEPING("transformers_version"), BOOKKEEPING("use_bfloat16"),
    BOOKKEEPING("use_cache"),
    GENERATION("bad_words_ids"), GENERATION("begin_suppress_tokens"), GENERATION("diversity_penalty"), GENERATION("do_sample"),
    GENERATION("early_stopping"), GENERATION("encoder_no_repeat_ngram_size"), GENERATION("exponential_decay_length_penalty"),
    GENERATION("forced_bos_token_id"), GENERATION("forced_eos_token_id"), GENERATION("length_penalty"), GENERATION("max_length"),
    GENERATION("min_length"), GENERATION("no_repeat_ngram_size"), GENERATION("num_beam_groups"), GENERATION("num_beams"),
    GENERATION("num_return_sequences"), GENERATION("output_scores"), GENERATION("remove_invalid_values"), GENERATION("repetition_penalty"),
    GENERATION("return_dict_in_generate"), GENERATION("suppress_tokens"), GENERATION("temperature"), GENERATION("top_k"), GENERATION("top_p"),
    GENERATION("typical_p"),
    {0},
};

const lnt_arch lnt_arch_transformers = {.others = others};
