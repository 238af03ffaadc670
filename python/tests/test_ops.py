"""linnet.ops on torch and NumPy: against formulas, float64, itself in other layouts, difference quotients, and goldens where they are."""
import json
import os
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import linnet
from linnet import ops
from problems import Problem, both_of, delta_inputs, error, flat, gated_delta_formula

NAMES = list(ops.names())
GOLDENS = Path(os.environ.get("LINNET_GOLDENS", Path(__file__).resolve().parents[3] / "shared/goldens"))


# ---- gradients -----------------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_gradcheck(name):
    """Every operator in float64: gradients of all inputs and states, for all outputs and final states, by difference quotients."""
    p = Problem(name, T=5)
    f = getattr(ops, name)
    counts = {s.name for s in p.op.states if s.first.counts}
    ins, sts = list(p.inputs), list(p.states)
    leaves = [p.inputs[k].requires_grad_() for k in ins] + [p.states[k].requires_grad_(k not in counts) for k in sts]

    def smooth(*xs):
        return tuple(x for x in flat(p.call(f, dict(zip(ins, xs)), dict(zip(sts, xs[len(ins):])))) if x.requires_grad)

    assert torch.autograd.gradcheck(smooth, leaves, eps=1e-6, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype,budget", [(torch.float32, 2e-5), (torch.bfloat16, 3e-2)])
def test_narrow_types_against_float64(name, dtype, budget):
    """float32 and bf16, of sizes at which the fast kernels run, against the float64 reference of the same rounded inputs, results and gradients."""
    if name in ("ttt_linear", "ttt_mlp", "titans") and dtype == torch.bfloat16:
        budget = 6e-2
    p = Problem(name, T=48, sizes={"K": 16, "V": 16, "D": 16, "M": 16, "F": 32, "mini_batch": 16}, options={"mini_batch": 16} if "mini_batch" in
                ops.operator(name).options else {"cg_tol": 1e-7, "cg_max_iter": 60} if name == "mesa" else None)
    rounded = {r.argument: (p.inputs[r.argument].to(dtype) if r.wide else p.inputs[r.argument].float()) for r in p.op.inputs if r.argument in p.inputs}
    states = {k: v.float() for k, v in p.states.items()}
    ours, mine = both_of(p, rounded, states)
    truth, theirs = both_of(p, {k: v.double() for k, v in rounded.items()}, {k: v.double() for k, v in states.items()})
    for a, b in zip(ours, truth):
        assert error(a, b) < budget
    for (leaf, a), b in zip(zip([*rounded, *states], mine), theirs):
        assert (a is None) == (b is None), leaf
        if a is not None and b.abs().max() > 1e-9:
            assert error(a, b) < 5 * budget, leaf


def test_formula_and_its_gradients():
    x = [t.double().requires_grad_() for t in delta_inputs(T=12, K=4, V=3)]
    y = [t.detach().float().requires_grad_() for t in x]
    o, S = gated_delta_formula(*x[:5], S=x[5])
    mine, state = ops.gated_delta_rule(*y[:5], initial_state=y[5], output_final_state=True)
    assert error(mine, o) < 2e-6 and error(state, S) < 2e-6
    (o.sin().sum() + S.square().sum()).backward()
    (mine.sin().sum() + state.square().sum()).backward()
    for a, b in zip(y, x):
        assert error(a.grad, b.grad) < 1e-5


def test_only_what_is_wanted_is_computed():
    q, k, v, g, beta, s = delta_inputs()
    v.requires_grad_()
    o, state = ops.gated_delta_rule(q, k, v, g, beta)
    assert state is None
    o.sum().backward()
    assert v.grad is not None and q.grad is None
    o, state = ops.gated_delta_rule(q, k, v, g, beta, output_final_state=True)
    state.sum().backward()  # no cotangent of o
    with torch.no_grad():
        assert not ops.gated_delta_rule(q, k, v, g, beta)[0].requires_grad


def test_second_derivatives_are_refused():
    x = [t.requires_grad_() for t in delta_inputs(T=3)]
    o, _ = ops.gated_delta_rule(*x[:5])
    with pytest.raises(RuntimeError, match="gradients of gradients"):
        torch.autograd.grad(o.sum(), x[0], create_graph=True)


# ---- layouts, dtypes, sequences --------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", [n for n in NAMES if n != "attention"])
def test_packed_is_separate(name):
    """Sequences in one row with cu_seqlens are the same sequences one by one; a batch is so many."""
    p = Problem(name, B=1, T=12, dtype=torch.float32)
    f, cut = getattr(ops, name), (0, 5, 12)
    mb = name in ("ttt_linear", "ttt_mlp", "titans")
    cut = (0, 4, 12) if mb else cut
    times = {r.argument: (int(p.options.get(r.letters[0][2:], 1)) if "*" in r.letters[0] else 1) for r in p.op.inputs if r.letters[0].startswith("T")}
    states = {k: torch.cat([v, 0.5 * v]) for k, v in p.states.items()}
    for offsets in (cut, torch.tensor(cut), torch.tensor(cut, dtype=torch.int32)):
        packed = p.call(f, p.inputs, states, cu_seqlens=offsets)
    parts = []
    for i, (a, b) in enumerate(zip(cut, cut[1:])):
        inputs = {k: v[:, a * times[k]:b * times[k]] if k in times else v for k, v in p.inputs.items()}
        parts.append(p.call(f, inputs, {k: v[i:i + 1] for k, v in states.items()}))
    torch.testing.assert_close(packed[0], torch.cat([x[0] for x in parts], 1), rtol=1e-5, atol=1e-6)
    for whole, *each in zip(flat(packed[1]), *(flat(x[1]) for x in parts)):
        torch.testing.assert_close(whole, torch.cat(each), rtol=1e-5, atol=1e-6)


def test_strided_inputs_and_parameters():
    q, k, v, g, beta, _ = delta_inputs()
    truth, _ = ops.gated_delta_rule(q, k, v, g, beta)
    turned = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k, v, g, beta)]
    assert not turned[0].is_contiguous()
    assert torch.equal(ops.gated_delta_rule(*turned)[0], truth)
    assert torch.equal(ops.gated_delta_rule(torch.nn.Parameter(q), k, v, g, beta)[0], truth)
    k.requires_grad_()
    ops.gated_delta_rule(q, k.expand(2, *k.shape[1:]), v, g, beta)[0].sum().backward()
    assert k.grad.shape == k.shape


def test_mixed_types_go_to_what_the_library_takes():
    x = delta_inputs()
    narrow = [t.to(torch.bfloat16) for t in x]  # gates and strengths too, as amp gives them
    narrow[3].requires_grad_()
    o, s = ops.gated_delta_rule(*narrow[:5], initial_state=narrow[5], output_final_state=True)
    assert (o.dtype, s.dtype) == (torch.bfloat16, torch.float32)
    o.float().sum().backward()
    assert narrow[3].grad.dtype == torch.bfloat16
    assert ops.gated_delta_rule(x[0], narrow[1], x[2], x[3], x[4])[0].dtype == torch.float32
    assert ops.gated_delta_rule(x[0].double(), *x[1:5])[0].dtype == torch.float64


def test_forms_agree():
    x = delta_inputs(T=70)
    truth, _ = ops.gated_delta_rule(*[t.double() for t in x[:5]])
    for form in ("auto", "recurrent", "chunk", "parallel"):
        assert error(ops.gated_delta_rule(*x[:5], form=form)[0], truth) < 2e-6
    assert error(ops.gated_delta_rule(*x[:5], form="chunk", chunk_size=32)[0], truth) < 2e-6
    assert error(ops.gated_delta_rule(*x[:5], impl="reference")[0], truth) < 1e-6


def test_empty_and_single():
    for B, T in ((0, 4), (2, 0), (1, 1)):
        x = delta_inputs(B=B, T=T)
        o, s = ops.gated_delta_rule(*x[:5], initial_state=x[5], output_final_state=True)
        assert o.shape == (B, T, 4, 24) and s.shape == x[5].shape
        if T == 0:
            assert torch.equal(s, x[5])


def test_split_and_hand_over():
    x = delta_inputs(T=33)
    whole, last = ops.gated_delta_rule(*x[:5], output_final_state=True)
    first, state = ops.gated_delta_rule(*[t[:, :20] for t in x[:5]], output_final_state=True)
    second, state = ops.gated_delta_rule(*[t[:, 20:] for t in x[:5]], initial_state=state, output_final_state=True)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(state, last, rtol=1e-5, atol=1e-6)


def test_threads():
    """Calls from several threads at once, of which each has the bits that it has alone."""
    inputs = [delta_inputs(seed=i)[:5] for i in range(4)]
    alone = [ops.gated_delta_rule(*x)[0] for x in inputs]
    wrong = []

    def work(i):
        for _ in range(20):
            if not torch.equal(ops.gated_delta_rule(*inputs[i])[0], alone[i]):
                wrong.append(i)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    [t.start() for t in threads], [t.join() for t in threads]
    assert not wrong


# ---- what is refused -----------------------------------------------------------------------------------------------------------------------------------

def test_refusals_name_what_is_wrong():
    q, k, v, g, beta, s = delta_inputs()
    for wrong, says in ((lambda: ops.gated_delta_rule(q, k[:, :5], v, g, beta), "k has shape"),
                        (lambda: ops.gated_delta_rule(q, k, v, g[..., None], beta), r"g has shape .* expected \[B, T, Hv\]"),
                        (lambda: ops.gated_delta_rule(q, k, v, g, beta, initial_state=s[:1]), "s0 has shape .* N is 1"),
                        (lambda: ops.gated_delta_rule(q, k, v, g, beta, cu_seqlens=[0, 40]), "lie in one row"),
                        (lambda: ops.gated_delta_rule(q.half(), k, v, g, beta), "q is float16"),
                        (lambda: ops.gated_delta_rule(q, k, v, None, beta), "g .* is missing"),
                        (lambda: ops.gated_delta_rule(q, k, v, g, beta.numpy()), "beta is a ndarray"),
                        (lambda: ops.gated_delta_rule(q, k, v, g, beta, form="fast"), 'form is "fast"'),
                        (lambda: ops.gated_delta_rule(q, k, v, g, beta, impl="fast"), "no implementation"),
                        (lambda: ops.gated_delta_rule(q, k, v, g, beta, initial_state={"t": s}), 'no "t"'),
                        (lambda: ops.mesa(q, k, q, g[..., :2], beta[..., :2], cg_max_iter=3), "lambda_ .* is missing"),
                        (lambda: ops.mesa(q, k, q, g[..., :2], beta[..., :2], lambda_=torch.ones(2, 16), cg_solver="best"), "cg_solver"),
                        (lambda: ops.no_such_operator, "no attribute"),
                        (lambda: ops.chunk_gla(q, k, v, q, reverse=True), "reverse = True"),
                        (lambda: ops.chunk_gla(q, k, v, q, colour=1), "colour")):
        with pytest.raises((ValueError, TypeError, AttributeError, linnet.Error), match=says):
            wrong()


# ---- flash-linear-attention's names --------------------------------------------------------------------------------------------------------------------------

def test_names_of_the_other_library():
    q, k, v, g, beta, s = delta_inputs(H=2, HV=2)
    same = dict(initial_state=s, output_final_state=True)
    unit = lambda x: x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()  # noqa: E731
    o, S = gated_delta_formula(unit(q), unit(3 * k), v, g, beta, 0.3, s)
    mine = ops.chunk_gated_delta_rule(q, 3 * k, v, g, beta, 0.3, s, True, True)
    assert error(mine[0], o) < 5e-6 and error(mine[1], S) < 5e-6
    mine = ops.chunk_gated_delta_rule(unit(q), unit(3 * k), v, g, beta, 0.3, s.transpose(-1, -2), True, state_v_first=True)
    assert error(mine[0], o) < 5e-6 and error(mine[1].transpose(-1, -2), S) < 5e-6
    raw, A, bias = torch.randn_like(g), torch.randn(2), torch.randn(2)
    o, S = gated_delta_formula(q, k, v, -A.exp() * F.softplus(raw + bias), 2 * beta.logit().sigmoid())
    mine = ops.chunk_gated_delta_rule(q, k, v, raw, beta.logit(), use_gate_in_kernel=True, A_log=A, dt_bias=bias, use_beta_sigmoid_in_kernel=True,
                                      allow_neg_eigval=True)
    assert error(mine[0], o) < 1e-5
    o, S = gated_delta_formula(q, k, v, torch.zeros_like(g), beta, None, s)
    for f in (ops.chunk_delta_rule, ops.fused_recurrent_delta_rule):
        mine = f(q, k, v, beta, **same)
        assert error(mine[0], o) < 5e-6 and error(mine[1], S) < 5e-6
    assert error(ops.fused_recurrent_gated_delta_rule(q, k, v, beta=beta, **same)[0], o) < 5e-6
    # gates of the rows, all alike, are a gate of the head; the untied rule with a = -beta k, b = k is the delta rule
    o, S = gated_delta_formula(q, k, v, g, beta, None, s)
    rows = g[..., None].expand(*g.shape, 16)
    assert error(ops.chunk_kda(q, k, v, rows, beta, **same)[0], o) < 5e-6
    assert error(ops.fused_recurrent_gated_delta_rule(q, k, v, gk=rows, beta=beta, **same)[0], o) < 5e-6
    o2, S2 = ops.chunk_comba(q, k, v, None, g, beta, **same)
    S3, out = s, []
    for t in range(q.shape[1]):
        wrong = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", S3, k[:, t]))
        S3 = S3 * g[:, t].exp()[..., None, None] + torch.einsum("bhk,bhv->bhkv", k[:, t], wrong)
        out.append(torch.einsum("bhkv,bhk->bhv", S3, q[:, t]) / 4)
    assert error(o2, torch.stack(out, 1)) < 5e-6 and error(S2, S3) < 5e-6
    b = beta[..., None]
    assert error(ops.chunk_rwkv7(q, rows, k, v * b, -b * k, k, 0.25, **same)[0], o2) < 5e-6
    assert error(ops.fused_mul_recurrent_rwkv7(q, rows, k, v * b, k, -b.expand_as(k), 0.25, **same)[0],
                 ops.chunk_dplr_delta_rule(q, k, v * b, -k, -k * b, rows, 0.25, **same)[0]) < 1e-6
    assert error(ops.chunk_iplr_delta_rule(q, k, v * b, -b * k, k, **same)[0], ops.chunk_delta_rule(q, k, v, beta, **same)[0]) < 5e-6
    two = ops.chunk_gated_delta_product(q[:, ::2], k, v, None, beta, 2, **same)
    assert error(two[0], ops.chunk_delta_rule(q.roll(-0, 1), k, v, beta, **same)[0][:, 1::2]) > 0  # other queries
    assert error(two[1], ops.chunk_delta_rule(q, k, v, beta, **same)[1]) < 5e-6  # the same writes


def decay_formula(q, k, v, rows=None, columns=None, scale=None, S=None):
    S = v.new_zeros(*v.shape[:1], *v.shape[2:3], k.shape[-1], v.shape[-1]) if S is None else S
    out = []
    for t in range(q.shape[1]):
        S = S * (rows[:, t].exp()[..., None] if rows is not None else 1) * (columns[:, t].exp()[..., None, :] if columns is not None else 1)
        S = S + torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        out.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) * (k.shape[-1] ** -0.5 if scale is None else scale))
    return torch.stack(out, 1), S


def test_names_of_the_other_library_decays():
    q, k, v, g, beta, s = delta_inputs(H=2, HV=2)
    B, T, H, K, V = *q.shape, v.shape[-1]
    same = dict(initial_state=s, output_final_state=True)
    close = lambda mine, truth: error(mine[0], truth[0]) < 5e-6 and error(mine[1], truth[1]) < 5e-6  # noqa: E731
    rows, columns = F.logsigmoid(torch.randn(B, T, H, K)), F.logsigmoid(torch.randn(B, T, H, V))
    by_head = lambda x: x.view(1, 1, H, 1).expand(B, T, H, K)  # noqa: E731
    assert close(ops.chunk_gla(q, k, v, rows, **same), decay_formula(q, k, v, rows, S=s))
    assert close(ops.fused_recurrent_gla(q, k, v, rows, columns, 0.5, **same), decay_formula(q, k, v, rows, columns, 0.5, s))
    assert close(ops.fused_recurrent_gla(q, k, v, gv=columns, **same), decay_formula(q, k, v, None, columns, S=s))
    assert close(ops.chunk_simple_gla(q, k, v, g, **same), decay_formula(q, k, v, g[..., None], S=s))
    gamma = torch.tensor([-0.1, -0.5])
    assert close(ops.chunk_simple_gla(q, k, v, g_gamma=gamma, **same), decay_formula(q, k, v, by_head(gamma), S=s))
    assert close(ops.chunk_simple_gla(q, k, v, g, gamma, **same), decay_formula(q, k, v, by_head(gamma) + g[..., None], S=s))
    assert close(ops.chunk_retention(q, k, v, **same), decay_formula(q, k, v, by_head(torch.tensor([31 / 32, 63 / 64]).log()), S=s))
    assert close(ops.chunk_lightning_attn(q, k, v, 1, 4, **same), decay_formula(q, k, v, by_head(torch.tensor([0, -3.0])), S=s))
    qq, kk, z = q.abs(), k.abs(), torch.rand(B, 1, H, K)
    o, S = decay_formula(qq, kk, v, S=s)
    den = (qq * K ** -0.5 * (kk.cumsum(1) + z)).sum(-1, keepdim=True) + 1e-10
    mine = ops.chunk_linear_attn(qq, kk, v, initial_state=(s, z), output_final_state=True)
    assert close((mine[0], mine[1][0]), (o / den, S)) and error(mine[1][1], kk.sum(1, keepdim=True) + z) < 1e-6
    assert ops.chunk_linear_attn(qq, kk, v)[1] is None
    assert close(ops.fused_recurrent_linear_attn(q, k, v, **same), decay_formula(q, k, v, S=s))
    u = torch.randn(H, K)
    S, out = s, []
    for t in range(T):
        kv = torch.einsum("bhk,bhv->bhkv", k[:, t], v[:, t])
        out.append(torch.einsum("bhkv,bhk->bhv", S + u[None, ..., None] * kv, q[:, t]) * K ** -0.5)
        S = S * rows[:, t].exp()[..., None] + kv
    assert close(ops.chunk_rwkv6(q, k, v, rows, u, **same), (torch.stack(out, 1), S))
    x, gate, h = torch.randn(B, T, 8), F.logsigmoid(torch.randn(B, T, 8)), torch.randn(B, 8)
    want, hs = h, []
    for t in range(T):
        want = want * gate[:, t].exp() + x[:, t]
        hs.append(want)
    assert close(ops.fused_recurrent_hgrn(x, gate, h, True), (torch.stack(hs, 1), want))


def test_names_of_the_other_library_slots_and_attention():
    q, k, v, g, beta, s = delta_inputs(H=2, HV=2)
    B, T, H, K, V, M = *q.shape, v.shape[-1], 6
    gate = F.logsigmoid(torch.randn(B, T, H, M))
    slots = 1 - gate.exp()
    first, second = torch.randn(B, H, K, M), torch.randn(B, H, M, V)
    a, S1 = decay_formula(q, k, slots, None, gate, S=first)
    b, S2 = decay_formula(a.softmax(-1), slots, v, gate, scale=1.0, S=second)
    o, (x, y) = ops.chunk_gsa(q, k, v, slots, gate, initial_state=(first, second), output_final_state=True)
    assert error(o, b) < 1e-5 and error(x, S1) < 1e-5 and error(y, S2) < 1e-5
    more = torch.randn(B, T, 2 * H, K)
    o, state = ops.chunk_gsa(more, k, v, slots, gate)
    assert o.shape == (B, T, 2 * H, V) and state == [None, None]
    # slots that are softmaxes over time: means of all keys so far, weighed
    logits = torch.randn(B, T, H, M)
    w = logits.exp()
    total = w.cumsum(1)
    keys = (w[..., None] * k[..., None, :]).cumsum(1) / total[..., None]
    values = (w[..., None] * v[..., None, :]).cumsum(1) / total[..., None]
    p = torch.einsum("bthk,bthmk->bthm", q, keys) * K ** -0.5
    assert error(ops.chunk_abc(q, k, v, logits)[0], torch.einsum("bthm,bthmv->bthv", p.softmax(-1), values)) < 1e-5
    lamb = torch.rand(H, K) + 0.5
    o, kk, kv = ops.chunk_mesa_net(q, k, v, g, beta, lamb, output_final_state=True, max_CG_iteration=60)
    H_t, G_t, out = q.new_zeros(B, H, K, K), q.new_zeros(B, H, K, V), []
    for t in range(T):
        decay, bt = g[:, t].exp()[..., None, None], beta[:, t, :, None, None]
        H_t = decay * H_t + bt * k[:, t][..., None] * k[:, t][..., None, :]
        G_t = decay * G_t + bt * k[:, t][..., None] * v[:, t][..., None, :]
        x = torch.linalg.solve(H_t + torch.diag_embed(lamb), q[:, t])
        out.append(torch.einsum("bhkv,bhk->bhv", G_t, x))
    assert error(o, torch.stack(out, 1)) < 1e-4 and error(kk, H_t) < 1e-5 and error(kv, G_t) < 1e-5
    assert ops.chunk_mesa_net(q, k, v, g, beta, lamb)[1:] == (None, None)
    many = torch.randn(B, T, 4, K)
    for window in (None, 7):
        mask = torch.ones(T, T).tril() if window is None else torch.ones(T, T).tril() - torch.ones(T, T).tril(-window)
        heads = [x.transpose(1, 2).repeat_interleave(4 // x.shape[2], 1) for x in (many, k, v)]
        truth = F.scaled_dot_product_attention(*heads, attn_mask=mask.bool()).transpose(1, 2)
        assert error(ops.parallel_attn(many, k, v, window_size=window), truth) < 1e-5


# ---- NumPy ---------------------------------------------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_numpy_is_torch(name):
    """Results and gradients of NumPy arrays have the bits of torch's."""
    p = Problem(name, T=9, dtype=torch.float32)
    f = getattr(ops, name)
    theirs, gradients = both_of(p, p.inputs, p.states)
    inputs, states = ({k: v.numpy() for k, v in x.items()} for x in (p.inputs, p.states))
    mine = flat_numpy(p.call(f, inputs, states))
    assert len(mine) >= len(theirs)
    assert np.array_equal(mine[0], theirs[0].detach().numpy())
    generator = torch.Generator().manual_seed(7)
    o = p.op.outputs[0].name
    cotangent = torch.randn(theirs[0].shape, generator=generator, dtype=torch.float64).float()
    got = ops.gradients(name, **inputs, cotangents={o: cotangent.numpy()}, initial_state=states or None, **p.options)
    leaves = {k: v.detach().requires_grad_() for k, v in p.inputs.items()}
    out = flat(p.call(f, leaves, p.states))[0]
    for key, truth in zip(leaves, torch.autograd.grad(out, list(leaves.values()), cotangent, allow_unused=True)):
        assert np.array_equal(got[key], truth.numpy()), key


def flat_numpy(result):
    if isinstance(result, np.ndarray):
        return [result]
    parts = [result[k] for k in sorted(result)] if isinstance(result, dict) else result
    return [x for part in parts if part is not None for x in flat_numpy(part)]


# ---- goldens -----------------------------------------------------------------------------------------------------------------------------------------------

def read_safetensors(path):
    raw = Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    meta = head.pop("__metadata__", {})
    kinds = {"F32": np.float32, "I64": np.int64, "F64": np.float64}
    return {k: np.frombuffer(raw, kinds[v["dtype"]], offset=8 + n + v["data_offsets"][0],
                             count=int(np.prod(v["shape"]))).reshape(v["shape"]).copy() for k, v in head.items()}, meta


@pytest.mark.skipif(not (GOLDENS / "ops").exists(), reason="no goldens here")
@pytest.mark.parametrize("path", sorted((GOLDENS / "ops").glob("*/*.safetensors")) if (GOLDENS / "ops").exists() else [], ids=lambda p: f"{p.parent.name}-{p.stem}")
def test_goldens(path):
    """What independent code computed: outputs, final states, and gradients of everything."""
    tensors, meta = read_safetensors(path)
    op = ops.operator(meta.pop("op"))
    options = {k: float(v) if op.options[k]["kind"] == "real" else int(v) for k, v in meta.items() if k in op.options}
    leaf = lambda name: torch.from_numpy(tensors[name]).requires_grad_()  # noqa: E731
    inputs = {r.argument: leaf(r.name) for r in op.inputs if r.name in tensors}
    states = {s.name: leaf(s.first.name) for s in op.states if s.first.name in tensors}
    cu = tensors.get("cu_seqlens")
    more = dict(initial_state=states or None, output_final_state=True) if op.states else {}
    result = getattr(ops, op.name)(**inputs, **options, **more, cu_seqlens=None if cu is None else cu.tolist())
    o, last = result if op.states else (result, None)
    last = last if isinstance(last, dict) else {op.states[0].name: last} if op.states else {}
    assert error(o, torch.from_numpy(tensors["o"])) < 1e-4
    pairs = [(o, "do")]
    for s in op.states:
        if s.last.name in tensors:
            assert error(last[s.name], torch.from_numpy(tensors[s.last.name])) < 1e-4, s.name
            pairs.append((last[s.name], "d" + s.last.name))
    pairs = [(x, torch.from_numpy(tensors[d])) for x, d in pairs if d in tensors]
    grads = torch.autograd.grad([x for x, _ in pairs], [*inputs.values(), *states.values()], [d for _, d in pairs], allow_unused=True)
    rows = [r.name for r in op.inputs if r.name in tensors] + [s.first.name for s in op.states if s.first.name in tensors]
    for name, g in zip(rows, grads):
        if "d" + name in tensors:
            assert error(g, torch.from_numpy(tensors["d" + name])) < 2e-4, name


# ---- with torch.compile ---------------------------------------------------------------------------------------------------------------------------------------

def test_under_torch_compile():
    """A compiled function runs the call as it is, between its graphs."""
    x = delta_inputs()[:5]
    plain = ops.gated_delta_rule(*x)[0].mul(2).sin()
    compiled = torch.compile(lambda *a: ops.gated_delta_rule(*a)[0].mul(2).sin(), backend="eager")
    assert torch.equal(compiled(*x), plain)
