// The stored vectors: a safetensors file (a length, a JSON header, the bytes) whose names read family/case/tensor.
// Written by write_vectors.py.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace statewell::test {

// One tensor; only the list of its dtype (F32, F64, I64 or U8) is filled, to its size exactly.
struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> floats;
    std::vector<double> doubles;
    std::vector<int64_t> integers;
    std::vector<uint8_t> bytes;
};

using Case = std::map<std::string, Tensor>;
using Vectors = std::map<std::string, std::map<std::string, Case>>;

// Throws std::runtime_error with what is wrong and where.
Vectors read_vectors(const std::string& path);

}  // namespace statewell::test
