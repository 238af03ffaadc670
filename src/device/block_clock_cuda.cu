/* The record of block_clock.cuh: made with the first device, written when the program ends. */
#include "device/block_clock.cuh"

#ifdef LINNET_BLOCK_CLOCK

#include <stdio.h>
#include <stdlib.h>

#include <vector>

static block_record *record;
static std::vector<void (*)(block_record *)> &setters()
{
    static std::vector<void (*)(block_record *)> all;
    return all;
}
void lnt_block_clock_add(void (*set)(block_record *)) { setters().push_back(set); }

static void write_record()
{
    std::vector<char> r(sizeof *record);
    FILE *f = fopen(getenv("LINNET_BLOCK_CLOCK"), "wb");
    if (!f) return;
    cudaDeviceSynchronize();
    if (cudaMemcpy(r.data(), record, r.size(), cudaMemcpyDeviceToHost) == cudaSuccess) fwrite(r.data(), 1, r.size(), f);
    fclose(f);
}

void lnt_block_clock_begin()
{
    if (record || !getenv("LINNET_BLOCK_CLOCK") || cudaMalloc(&record, sizeof *record) != cudaSuccess) return;
    cudaMemset(record, 0, sizeof *record);
    for (auto set : setters()) set(record);
    cudaDeviceSynchronize();
    atexit(write_record);
}

#endif
