"""Functions under the names that flash-linear-attention (0.6) has them, with its arguments, shapes and defaults.

What differs: chunk lengths are linnet's own, and `fused_recurrent_*`, `chunk_*` and `parallel_*` of an operator are one function, which takes what is
faster; arguments that say how kernels go about it are accepted and have no effect; context parallelism, `reverse` and returned attention matrices are
refused. States are float32. Values may have more heads than queries and keys wherever the operator has it so."""
from __future__ import annotations

import math
from typing import Any, Callable, Optional, Tuple

from linnet.ops import _plain

_plain_functions: dict[str, Callable[..., Any]] = {}
# How kernels go about it there; without a meaning here.
_IDLE = {"chunk_size", "chunk_indices", "safe_gate", "disable_recompute", "use_graph", "max_num_seqs", "checkpoint_level"}
# What would change the result, with the values that do not.
_REFUSED = {"reverse": (False,), "cp_context": (None,), "output_attentions": (False,), "return_intermediate_states": (False,), "head_first": (False,),
            "sink_bias": (None,), "transpose_state_layout": (False,)}


def _op(name: str) -> Callable[..., Any]:
    found = _plain_functions.get(name)
    if found is None:
        found = _plain_functions[name] = _plain.make(name)
    return found


def _others(function: str, more: dict[str, Any]) -> None:
    for key, value in more.items():
        if key in _REFUSED:
            if value not in _REFUSED[key]:
                raise ValueError(f"{function}: {key} = {value!r} is not offered")
        elif key not in _IDLE:
            raise TypeError(f"{function} takes no argument {key!r}")


def _offsets(cu_seqlens: Any, cu_seqlens_cpu: Any) -> Any:
    """Those on the host, where they are there too: nothing waits then."""
    return cu_seqlens if cu_seqlens is None or cu_seqlens_cpu is None else cu_seqlens_cpu


def _unit(x: Any) -> Any:
    """Rows of unit norm, x / sqrt(x.x + 1e-6)."""
    wide = x if x.dtype.itemsize > 2 else x.float()
    return (wide * (wide.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype)


def _wide(x: Any) -> Any:
    return x if x.dtype.itemsize > 2 else x.float()


def _decay(g: Any, A_log: Any, dt_bias: Any, lower_bound: Optional[float] = None) -> Any:
    """-exp(A_log) softplus(g + dt_bias) by head, or of a lower bound its share sigmoid(exp(A_log) (g + dt_bias))."""
    from torch.nn.functional import softplus
    g = _wide(g)
    shape = (-1, 1) if g.dim() == 4 else (-1,)
    if dt_bias is not None:
        g = g + dt_bias.to(g.dtype).view(g.shape[2:])
    if lower_bound is not None:
        return lower_bound * (g if A_log is None else A_log.to(g.dtype).exp().view(shape) * g).sigmoid()
    if A_log is None:
        raise ValueError("A_log is missing, which use_gate_in_kernel needs")
    return -A_log.to(g.dtype).exp().view(shape) * softplus(g)


def _strength(beta: Any, sigmoid: bool, doubled: bool) -> Any:
    if doubled and not sigmoid:
        raise ValueError("allow_neg_eigval needs use_beta_sigmoid_in_kernel")
    return beta if not sigmoid else _wide(beta).sigmoid() * (2 if doubled else 1)


def _turned(state: Any, turn: bool) -> Any:
    """Between [N, H, K, V] and [N, H, V, K]."""
    return state.transpose(-1, -2).contiguous() if turn and state is not None else state


Result = Tuple[Any, Any]


# ---- delta rules --------------------------------------------------------------------------------------------------------------------------------

def chunk_gated_delta_rule(q: Any, k: Any, v: Any, g: Any, beta: Any, scale: Optional[float] = None, initial_state: Any = None,
                           output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
                           allow_neg_eigval: bool = False, state_v_first: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None,
                           use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None, **more: Any) -> Result:
    """Gated delta rule: q, k [B, T, H, K], v [B, T, HV, V], g, beta [B, T, HV], state [N, HV, K, V]. (o, final state or None)"""
    if more:
        _others("chunk_gated_delta_rule", more)
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    if use_gate_in_kernel:
        g = _decay(g, A_log, dt_bias)
    if use_beta_sigmoid_in_kernel or allow_neg_eigval:
        beta = _strength(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    if state_v_first:
        initial_state = _turned(initial_state, True)
    if cu_seqlens_cpu is not None:
        cu_seqlens = _offsets(cu_seqlens, cu_seqlens_cpu)
    o, state = _op("gated_delta_rule")(q, k, v, g, beta, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                                       cu_seqlens=cu_seqlens)
    return o, _turned(state, state_v_first)


def fused_recurrent_gated_delta_rule(q: Any, k: Any, v: Any, g: Any = None, gk: Any = None, gv: Any = None, beta: Any = None,
                                     scale: Optional[float] = None, initial_state: Any = None, output_final_state: bool = False,
                                     use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False, A_log: Any = None, dt_bias: Any = None,
                                     use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False, state_v_first: bool = False,
                                     cu_seqlens: Any = None, **more: Any) -> Result:
    """The same with gates of a head (g), of the rows of its state (gk), or none."""
    if gv is not None:
        raise ValueError("fused_recurrent_gated_delta_rule: gv is not offered")
    if beta is None:
        beta = v.new_ones(v.shape[:3])
    same: dict[str, Any] = dict(scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                                use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel, use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
                                allow_neg_eigval=allow_neg_eigval, state_v_first=state_v_first, cu_seqlens=cu_seqlens, **more)
    if gk is not None:
        if g is not None:
            g = _decay(g, A_log, dt_bias) if use_gate_in_kernel else _wide(g)
            gk = _wide(gk) + g.unsqueeze(-1)
        return chunk_kda(q, k, v, gk, beta, **same)
    if g is None:
        g = v.new_zeros(v.shape[:3])
        use_gate_in_kernel = False
    return chunk_gated_delta_rule(q, k, v, g, beta, use_gate_in_kernel=use_gate_in_kernel, A_log=A_log, dt_bias=dt_bias, **same)


def chunk_delta_rule(q: Any, k: Any, v: Any, beta: Any = None, scale: Optional[float] = None, initial_state: Any = None,
                     output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None,
                     **more: Any) -> Result:
    """Delta rule: beta [B, T, H], ones where None. (o, final state or None)"""
    _others("chunk_delta_rule", more)
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    if beta is None:
        beta = v.new_ones(v.shape[:3])
    return _op("delta_rule")(q, k, v, beta, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                             cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))


def parallel_delta_rule(q: Any, k: Any, v: Any, beta: Any, scale: Optional[float] = None, output_attentions: bool = False) -> Result:
    """Delta rule without states. (o, None)"""
    _others("parallel_delta_rule", {"output_attentions": output_attentions})
    return chunk_delta_rule(q, k, v, beta, scale)


def chunk_gated_delta_product(q: Any, k: Any, v: Any, g: Any, beta: Any, num_householder: int, scale: Optional[float] = None,
                              initial_state: Any = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
                              cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, **more: Any) -> Result:
    """Several delta rules a token: k, v, beta have T * num_householder rows. (o, final state or None)"""
    _others("chunk_gated_delta_product", more)
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    return _op("gated_delta_product")(q, k, v, beta, g, scale=scale, n_householder=num_householder, initial_state=initial_state,
                                      output_final_state=output_final_state, cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))


def chunk_kda(q: Any, k: Any, v: Any, g: Any, beta: Any, scale: Optional[float] = None, initial_state: Any = None, output_final_state: bool = False,
              use_qk_l2norm_in_kernel: bool = False, use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False,
              allow_neg_eigval: bool = False, safe_gate: bool = False, lower_bound: Optional[float] = None, disable_recompute: bool = False,
              return_intermediate_states: bool = False, state_v_first: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None,
              A_log: Any = None, dt_bias: Any = None, **more: Any) -> Result:
    """Kimi delta attention: g [B, T, HV, K] decays rows of the state. (o, final state or None)"""
    _others("chunk_kda", {**more, "return_intermediate_states": return_intermediate_states})
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    if use_gate_in_kernel:
        g = _decay(g, A_log, dt_bias, lower_bound)
    beta = _strength(beta, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    o, state = _op("kda")(q, k, v, g, beta, scale=scale, initial_state=_turned(initial_state, state_v_first), output_final_state=output_final_state,
                          cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))
    return o, _turned(state, state_v_first)


def fused_recurrent_kda(q: Any, k: Any, v: Any, g: Any, beta: Any, A_log: Any = None, dt_bias: Any = None, scale: Optional[float] = None,
                        initial_state: Any = None, output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False,
                        use_gate_in_kernel: bool = False, use_beta_sigmoid_in_kernel: bool = False, allow_neg_eigval: bool = False,
                        lower_bound: Optional[float] = None, state_v_first: bool = False, cu_seqlens: Any = None, **more: Any) -> Result:
    """chunk_kda in another order of arguments."""
    return chunk_kda(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                     use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound=lower_bound, state_v_first=state_v_first, cu_seqlens=cu_seqlens,
                     A_log=A_log, dt_bias=dt_bias, **more)


def chunk_dplr_delta_rule(q: Any, k: Any, v: Any, a: Any, b: Any, gk: Any, scale: Optional[float] = None, initial_state: Any = None,
                          output_final_state: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, lower_bound: Optional[float] = None,
                          **more: Any) -> Result:
    """Untied delta rule, a diagonal plus a matrix of rank one: a, b, gk [B, T, H, K]. (o, final state or None)"""
    _others("chunk_dplr_delta_rule", more)
    return _op("dplr")(q, k, v, a, b, gk, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                       cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))


def chunk_iplr_delta_rule(q: Any, k: Any, v: Any, a: Any, b: Any, scale: Optional[float] = None, initial_state: Any = None,
                          output_final_state: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, **more: Any) -> Result:
    """The same without decay."""
    import torch
    return chunk_dplr_delta_rule(q, k, v, a, b, torch.zeros(a.shape, dtype=_wide(a).dtype, device=a.device), scale, initial_state, output_final_state,
                                 cu_seqlens, cu_seqlens_cpu, **more)


def chunk_rwkv7(r: Any, w: Any, k: Any, v: Any, a: Any, b: Any, scale: Optional[float] = 1.0, initial_state: Any = None,
                output_final_state: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, **more: Any) -> Result:
    """RWKV-7: w are logarithms of decays. (o, final state or None)"""
    return chunk_dplr_delta_rule(r, k, v, a, b, w, scale, initial_state, output_final_state, cu_seqlens, cu_seqlens_cpu, **more)


def fused_recurrent_rwkv7(r: Any, w: Any, k: Any, v: Any, a: Any, b: Any, scale: Optional[float] = None, initial_state: Any = None,
                          output_final_state: bool = True, cu_seqlens: Any = None, **more: Any) -> Result:
    """chunk_rwkv7 with other defaults."""
    return chunk_rwkv7(r, w, k, v, a, b, scale, initial_state, output_final_state, cu_seqlens, **more)


def fused_mul_recurrent_rwkv7(r: Any, w: Any, k: Any, v: Any, kk: Any, a: Any, scale: Optional[float] = 1.0, initial_state: Any = None,
                              output_final_state: bool = False, reverse: bool = False, cu_seqlens: Any = None) -> Result:
    """chunk_rwkv7 of -kk and kk * a."""
    _others("fused_mul_recurrent_rwkv7", {"reverse": reverse})
    return chunk_rwkv7(r, w, k, v, -kk, kk * a, scale, initial_state, output_final_state, cu_seqlens)


def chunk_comba(q: Any, k: Any, v: Any, p: Any, g: Any, beta: Any = None, scale: Optional[float] = None, initial_state: Any = None,
                output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None) -> Result:
    """Comba: p [B, T, H, K] (None: k) reads what is erased, g, beta [B, T, HV]. (o, final state or None)"""
    p = k if p is None else p
    if use_qk_l2norm_in_kernel:
        q, k, p = _unit(q), _unit(k), _unit(p)
    if beta is None:
        beta = v.new_ones(v.shape[:3])
    heads = v.shape[2] // k.shape[2]
    b, a = (k, p) if heads == 1 else (k.repeat_interleave(heads, 2), p.repeat_interleave(heads, 2))
    strength = beta.unsqueeze(-1).to(v.dtype)
    decay = _wide(g).unsqueeze(-1).expand(*g.shape, k.shape[-1])
    return chunk_dplr_delta_rule(q, k, v * strength, -a * strength, b, decay, scale, initial_state, output_final_state, cu_seqlens, cu_seqlens_cpu)


def fused_recurrent_comba(q: Any, k: Any, p: Any, v: Any, g: Any, beta: Any = None, scale: Optional[float] = None, initial_state: Any = None,
                          output_final_state: bool = False, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None) -> Result:
    """chunk_comba in another order of arguments."""
    return chunk_comba(q, k, v, p, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens)


# ---- decays --------------------------------------------------------------------------------------------------------------------------------------

def chunk_simple_gla(q: Any, k: Any, v: Any, g: Any = None, g_gamma: Any = None, scale: Optional[float] = None, initial_state: Any = None,
                     output_final_state: bool = False, state_v_first: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None,
                     **more: Any) -> Result:
    """Linear attention that decays by g [B, T, H], by g_gamma [H], by both, or not. (o, final state or None)"""
    _others("chunk_simple_gla", more)
    same = dict(scale=scale, initial_state=_turned(initial_state, state_v_first), output_final_state=output_final_state,
                cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))
    if g is not None:
        o, state = _op("simple_gla")(q, k, v, g if g_gamma is None else _wide(g) + g_gamma, **same)
    elif g_gamma is not None:
        o, state = _op("retention")(q, k, v, g_gamma, **same)
    else:
        o, state = _op("linear_attn")(q, k, v, **same)
    return o, _turned(state, state_v_first)


def parallel_simple_gla(q: Any, k: Any, v: Any, g: Any = None, scale: Optional[float] = None, output_attentions: bool = False, cu_seqlens: Any = None,
                        cu_seqlens_cpu: Any = None) -> Result:
    """chunk_simple_gla without states. (o, None)"""
    _others("parallel_simple_gla", {"output_attentions": output_attentions})
    return chunk_simple_gla(q, k, v, g, scale=scale, cu_seqlens=cu_seqlens, cu_seqlens_cpu=cu_seqlens_cpu)


def chunk_linear_attn(q: Any, k: Any, v: Any, scale: Optional[float] = None, initial_state: Any = None, output_final_state: bool = False,
                      normalize: bool = True, cu_seqlens: Any = None) -> Result:
    """Linear attention; normalised, states are (S [N, H, K, V], z [N, 1, H, K]). (o, final state or None)"""
    state = initial_state
    if normalize and isinstance(initial_state, (tuple, list)):
        z = initial_state[1]
        state = (initial_state[0], None if z is None else z.reshape(z.shape[0], z.shape[-2], z.shape[-1]))
    o, last = _op("linear_attn")(q, k, v, scale=scale, normalize=normalize, initial_state=state, output_final_state=output_final_state,
                                 cu_seqlens=cu_seqlens)
    if normalize and last is not None:
        last = (last["s"], last["z"][:, None])
    return o, last


def fused_recurrent_linear_attn(q: Any, k: Any, v: Any, scale: Optional[float] = None, initial_state: Any = None, output_final_state: bool = False,
                                reverse: bool = False, normalize: bool = False, cu_seqlens: Any = None) -> Result:
    """chunk_linear_attn with other defaults."""
    _others("fused_recurrent_linear_attn", {"reverse": reverse})
    return chunk_linear_attn(q, k, v, scale, initial_state, output_final_state, normalize, cu_seqlens)


def _by_head(q: Any, gates: list[float]) -> Any:
    import torch
    return torch.tensor(gates, dtype=torch.float64 if q.dtype == torch.float64 else torch.float32, device=q.device)


_gates: dict[Any, Any] = {}  # of retention and lightning attention by device and heads: the same every time


def _kept_gates(q: Any, name: str, *by: Any) -> Any:
    key = (name, q.shape[2], q.dtype, q.device, *by)
    found = _gates.get(key)
    if found is None:
        heads = q.shape[2]
        if name == "retention":
            values = [math.log1p(-2.0 ** (-5 - h)) for h in range(heads)]
        else:
            values = [-8 / heads * (1 - by[0] / by[1]) * h for h in range(heads)]
        found = _gates[key] = _by_head(q, values)
    return found


def chunk_retention(q: Any, k: Any, v: Any, scale: Optional[float] = None, initial_state: Any = None, output_final_state: bool = False,
                    cu_seqlens: Any = None, **more: Any) -> Result:
    """Retention, head h decaying by 1 - 2^(-5-h). (o, final state or None)"""
    return chunk_simple_gla(q, k, v, None, _kept_gates(q, "retention"), scale, initial_state, output_final_state, cu_seqlens=cu_seqlens, **more)


def parallel_retention(q: Any, k: Any, v: Any, scale: Optional[float] = None, output_attentions: bool = False, cu_seqlens: Any = None) -> Result:
    """chunk_retention without states. (o, None)"""
    return chunk_retention(q, k, v, scale, cu_seqlens=cu_seqlens, output_attentions=output_attentions)


def chunk_lightning_attn(q: Any, k: Any, v: Any, layer_idx: int, num_layers: int, scale: Optional[float] = None, initial_state: Any = None,
                         output_final_state: bool = False, cu_seqlens: Any = None, **more: Any) -> Result:
    """Lightning attention, head h decaying by exp(-8h/H (1 - layer_idx / num_layers)). (o, final state or None)"""
    return chunk_simple_gla(q, k, v, None, _kept_gates(q, "lightning", layer_idx, num_layers), scale, initial_state, output_final_state,
                            cu_seqlens=cu_seqlens, **more)


def chunk_gla(q: Any, k: Any, v: Any, g: Any, scale: Optional[float] = None, initial_state: Any = None, output_final_state: bool = False,
              state_v_first: bool = False, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, **more: Any) -> Result:
    """Gated linear attention: g [B, T, H, K] decays rows of the state. (o, final state or None)"""
    _others("chunk_gla", more)
    o, state = _op("gla")(q, k, v, g, scale=scale, initial_state=_turned(initial_state, state_v_first), output_final_state=output_final_state,
                          cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))
    return o, _turned(state, state_v_first)


def fused_recurrent_gla(q: Any, k: Any, v: Any, gk: Any = None, gv: Any = None, scale: Optional[float] = None, initial_state: Any = None,
                        output_final_state: bool = False, reverse: bool = False, state_v_first: bool = False, cu_seqlens: Any = None,
                        **more: Any) -> Result:
    """Linear attention with gates of the rows (gk), of the columns (gv), of both or of neither. (o, final state or None)"""
    _others("fused_recurrent_gla", {**more, "reverse": reverse})
    gates = [g for g in (gk, gv) if g is not None]
    name = ("gla_kv" if len(gates) == 2 else "gla" if gk is not None else "gla_v") if gates else "linear_attn"
    o, state = _op(name)(q, k, v, *gates, scale=scale, initial_state=_turned(initial_state, state_v_first), output_final_state=output_final_state,
                         cu_seqlens=cu_seqlens)
    return o, _turned(state, state_v_first)


def chunk_rwkv6(r: Any, k: Any, v: Any, w: Any, u: Any, scale: Optional[float] = None, initial_state: Any = None, output_final_state: bool = False,
                cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, **more: Any) -> Result:
    """RWKV-6: w [B, T, H, K] are logarithms of decays, u [H, K] is a token's own bonus. (o, final state or None)"""
    _others("chunk_rwkv6", more)
    return _op("rwkv6")(r, k, v, w, u, scale=scale, initial_state=initial_state, output_final_state=output_final_state,
                        cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))


def chunk_hgrn(x: Any, g: Any, initial_state: Any = None, output_final_state: bool = False, cu_seqlens: Any = None) -> Result:
    """h_t = exp(g_t) h_{t-1} + x_t by channel: x, g [B, T, D], state [N, D]. (o, final state or None)"""
    return _op("scan")(g, x, initial_state=initial_state, output_final_state=output_final_state, cu_seqlens=cu_seqlens)


# ---- slots, solves, attention --------------------------------------------------------------------------------------------------------------------

def chunk_gsa(q: Any, k: Any, v: Any, s: Any, g: Any = None, scale: Optional[float] = None, initial_state: Any = None,
              output_final_state: bool = False, checkpoint_level: int = 2, cu_seqlens: Any = None, cu_seqlens_cpu: Any = None, **more: Any) -> Result:
    """Gated slot attention: s, g [B, T, H, M] write to and decay the slots (g None: s are logits of a softmax over time), states
    ([N, H, K, M], [N, H, M, V]); q may have more heads. (o, [states] or [None, None])"""
    import torch
    _others("chunk_gsa", more)
    if g is None:
        if cu_seqlens is not None:
            raise ValueError("chunk_gsa: g None with cu_seqlens is not offered")
        total = _wide(s).logcumsumexp(1)
        g = torch.cat((total[:, :1], total[:, :-1]), 1) - total
        s = (_wide(s) - total).exp().to(k.dtype)
    first, second = initial_state if initial_state is not None else (None, None)
    group = q.shape[2] // k.shape[2]
    if group > 1:
        k, v, s, g = (x.repeat_interleave(group, 2) for x in (k, v, s, g))
        first, second = (None if x is None else x.repeat_interleave(group, 1) for x in (first, second))
    offsets = _offsets(cu_seqlens, cu_seqlens_cpu)
    slots, first = _op("gla_v")(q, k, s, g, scale=scale, initial_state=first, output_final_state=output_final_state, cu_seqlens=offsets)
    read = _wide(slots).softmax(-1).to(q.dtype)
    o, second = _op("gla")(read, s, v, g, scale=1.0, initial_state=second, output_final_state=output_final_state, cu_seqlens=offsets)
    if group > 1 and output_final_state:
        first, second = first[:, ::group].contiguous(), second[:, ::group].contiguous()
    return o, [first, second]


def fused_recurrent_gsa(q: Any, k: Any, v: Any, s: Any, g: Any = None, scale: Optional[float] = None, initial_state: Any = None,
                        output_final_state: bool = False, reverse: bool = False, cu_seqlens: Any = None) -> Result:
    """chunk_gsa."""
    return chunk_gsa(q, k, v, s, g, scale, initial_state, output_final_state, cu_seqlens=cu_seqlens, reverse=reverse)


def chunk_abc(q: Any, k: Any, v: Any, s: Any, initial_state: Any = None, output_final_state: bool = False) -> Result:
    """Attention with bounded memory: chunk_gsa whose slots are softmaxes over time of s."""
    if initial_state is not None:
        raise ValueError("chunk_abc: an initial state is not offered, since the sums of its weights are not part of it")
    return chunk_gsa(q, k, v, s, None, None, None, output_final_state)


def chunk_mesa_net(q: Any, k: Any, v: Any, g: Any, beta: Any, lamb: Any, h_kk_init: Any = None, h_kv_init: Any = None,
                   output_final_state: bool = False, max_CG_iteration: int = 30, use_qk_l2norm_in_kernel: bool = False, cu_seqlens: Any = None,
                   cu_seqlens_cpu: Any = None) -> Tuple[Any, Any, Any]:
    """MesaNet's layer: g, beta [B, T, H], lamb [H, K]. (o, final H [N, H, K, K], final G [N, H, K, V]), None unless asked for"""
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    o, state = _op("mesa")(q, k, v, g, beta, lambda_=lamb, cg_max_iter=max_CG_iteration, initial_state={"s_kk": h_kk_init, "s_kv": h_kv_init},
                           output_final_state=output_final_state, cu_seqlens=_offsets(cu_seqlens, cu_seqlens_cpu))
    return (o, state["s_kk"], state["s_kv"]) if output_final_state else (o, None, None)


def parallel_attn(q: Any, k: Any, v: Any, g: Any = None, scale: Optional[float] = None, window_size: Optional[int] = None, cu_seqlens: Any = None,
                  chunk_indices: Any = None, *, sink_bias: Any = None) -> Any:
    """Causal softmax attention, the last window_size keys of it: q [B, T, HQ, K], k, v [B, T, H, ...]. o"""
    _others("parallel_attn", {"sink_bias": sink_bias})
    if g is not None:
        raise ValueError("parallel_attn: g is not offered")
    return _op("attention")(q, k, v, scale=scale, window=window_size or None, cu_seqlens=cu_seqlens)


# One function where there are several there.
fused_recurrent_delta_rule = fused_chunk_delta_rule = chunk_delta_rule
chunk_gdn, fused_recurrent_gdn = chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
fused_recurrent_dplr_delta_rule, fused_recurrent_iplr_delta_rule = chunk_dplr_delta_rule, chunk_iplr_delta_rule
fused_chunk_simple_gla = fused_recurrent_simple_gla = chunk_simple_gla
fused_chunk_linear_attn = chunk_linear_attn
fused_chunk_retention = fused_recurrent_retention = chunk_retention
fused_recurrent_lightning_attn = chunk_lightning_attn
fused_chunk_gla, fused_recurrent_rwkv6, fused_recurrent_hgrn = chunk_gla, chunk_rwkv6, chunk_hgrn

__all__ = [name for name in dir() if name.split("_")[0] in ("chunk", "fused", "parallel")]
