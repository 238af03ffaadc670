/* The step of a delta layer as a kernel of its own (delta_layer.cuh). */
#include "recurrence/delta/delta_layer.cuh"

namespace {

using namespace delta_layer;

constexpr int MOST_GRID = 65535, FEW = 8; /* FEW: sequences whose products may be pieces of a kernel, too */

/* blockIdx: query-key head, sequence. */
template <typename T, int K> __global__ void __maxnreg__(104) layer_kernel(const __grid_constant__ layer_args p)
{
    extern __shared__ __align__(128) float memory[];
    __shared__ layer_small small;
    if (threadIdx.x == 0) {
        layer_init(small);
        mbarrier_init_fence();
    }
    __syncthreads(); /* for racecheck, which would have the copies begin behind it */
    layer_step<T, K>(p, (int)blockIdx.x, (int)blockIdx.y, memory, small, lnt_alone(), 0);
}

/* ---- launches ----------------------------------------------------------------------------------------------------------------------------- */

bool reaches(const void *p) { return (uintptr_t)p % 16 == 0; }

/* False: tensors are not as the kernel needs them. */
bool layer_args_of(const lnt_delta_layer *layer, const lnt_recur_args *a, layer_args *p)
{
    const lnt_dtype dtype = (lnt_dtype)a->dtype;
    *p = {};
    for (int j = 0; j < 3; j++) {
        const lnt_call *k = layer->conv[j];
        const lnt_conv_attr *attr = (const lnt_conv_attr *)k->attr;
        p->conv[j] = {k->in[0].data, k->param[0].master, (char *)k->state, k->state_stride, (int)k->in[0].cols, 0};
        if (j < 2) p->conv[j].eps = (float)((const lnt_norm_attr *)layer->l2norm[j]->attr)->eps;
        if (attr->size != TAPS || k->in[0].dtype != dtype || !reaches(k->in[0].data) || !reaches(k->param[0].master)) return false;
        if (!reaches(k->state) || k->state_stride % 16) return false;
    }
    p->g = (const float *)a->g, p->beta = (const float *)a->beta, p->S = (float *)a->sT;
    p->Hv = a->Hv, p->V = a->V, p->group = a->Hv / a->Hq, p->scale = (float)a->scale;
    if (layer->keeps_o) p->o = a->o;
    if (const lnt_call *k = layer->rmsnorm) {
        const lnt_norm_attr *attr = (const lnt_norm_attr *)k->attr;
        p->eps = (float)attr->eps, p->y = k->out[0].data;
        if (k->node->n_param) p->w = k->param[0].master;
        if (k->node->n_in > 1) p->gate = k->in[1].data;
        if (k->out[0].dtype != dtype || (p->gate && (k->in[1].dtype != dtype || attr->act != LNT_SILU))) return false;
    }
    return reaches(p->S);
}

template <typename T, int K> void launch(const lnt_cuda *d, const layer_args &p, int heads, int sequences)
{
    lnt_launch_with(d, layer_kernel<T, K>, dim3((unsigned)heads, (unsigned)sequences), 32 * WARPS, layer_bytes(K, p.V), 1, p);
}

void launch_piece(const lnt_cuda *d, const lnt_piece *piece, const CUtensorMap *)
{
    layer_piece p;
    memcpy(&p, piece->args, sizeof p);
    const int sequences = piece->blocks / p.heads;
    p.K == 64 ? launch<bf16, 64>(d, p.args, p.heads, sequences) : launch<bf16, 128>(d, p.args, p.heads, sequences);
}

} // namespace

extern "C" bool lnt_delta_layer_fits(int32_t K, int32_t V)
{
    return (K == 64 || K == 128) && V % 8 == 0 && V <= MOST_V;
}

extern "C" bool lnt_delta_layer_sm90(const lnt_delta_layer *layer, const lnt_recur_args *a, const lnt_device *device)
{
    const lnt_cuda *d = (const lnt_cuda *)device;
    layer_args p;
    if (!lnt_delta_layer_fits(a->K, a->V) || a->sequences > MOST_GRID || !layer_args_of(layer, a, &p)) return false;
    const layer_piece piece = {p, (int)a->Hq, (int)a->K};
    const int blocks = (int)(a->Hq * a->sequences);
    if (a->dtype == LINNET_BF16 && a->sequences <= FEW &&
        lnt_persistent_offer(d, LNT_PIECE_DELTA_LAYER, &piece, sizeof piece, blocks, layer_bytes(a->K, a->V), NULL, launch_piece))
        return true;
    LNT_BY_TYPE(a->dtype, T, a->K == 64 ? launch<T, 64>(d, p, (int)a->Hq, (int)a->sequences) : launch<T, 128>(d, p, (int)a->Hq, (int)a->sequences));
    return true;
}
