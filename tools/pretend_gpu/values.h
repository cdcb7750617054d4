// The values that operations move and combine.
#pragma once
#include <cstddef>

#include "nccl_api.h"

size_t width(int type);             // bytes
const char* name_of_type(int type);  // as NCCL's profiler calls it
// Reduces `count` values into others; averages are sums until the end. Nothing computes with halves:
// these stay what they are.
void combine(int type, int reduction, char* into, const char* from, size_t count);
void divide(int type, char* values, size_t count, int by);
