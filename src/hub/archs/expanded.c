/* Transformers' Mamba: how wide a layer is stands in the file as a number, beside the factor that it usually follows from. */
#include "hub/archs.h"

static json_int_t expanded(const json_t *o)
{
    return json_integer_value(json_object_get(o, "expand")) * json_integer_value(json_object_get(o, "hidden_size"));
}

/* intermediate_size is a number always; expand hidden_size columns are our null. */
static bool from_theirs(json_t *o)
{
    const json_t *width = json_object_get(o, "intermediate_size");
    if (!width || !json_object_get(o, "expand") || json_integer_value(width) != expanded(o)) return true;
    return json_object_set_new(o, "intermediate_size", json_null()) == 0;
}

static bool to_theirs(json_t *o)
{
    if (!json_is_null(json_object_get(o, "intermediate_size"))) return true;
    return json_object_set_new(o, "intermediate_size", json_integer(expanded(o))) == 0;
}

const lnt_arch lnt_arch_expanded = {.from_theirs = from_theirs, .to_theirs = to_theirs, .base = &lnt_arch_backbone};
