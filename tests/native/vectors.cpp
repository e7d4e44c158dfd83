#include "vectors.h"

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <utility>

namespace statewell::test {
namespace {

// What one entry of the header says.
struct Entry {
    std::string dtype;
    std::vector<int64_t> shape, offsets;
};

// The JSON that a safetensors header is made of: objects, strings without escapes, lists of whole numbers.
class Scanner {
public:
    explicit Scanner(std::string text) : text_(std::move(text)) {}

    bool comes(char wanted) {
        while (at_ < text_.size() && text_[at_] == ' ') ++at_;
        if (at_ >= text_.size() || text_[at_] != wanted) return false;
        ++at_;
        return true;
    }

    void expect(char wanted) {
        if (!comes(wanted))
            throw std::runtime_error("the header lacks a " + std::string(1, wanted) + " at byte " + std::to_string(at_));
    }

    std::string string() {
        expect('"');
        const size_t end = text_.find('"', at_);
        if (end == std::string::npos) throw std::runtime_error("the header ends inside a string");
        const std::string found = text_.substr(at_, end - at_);
        at_ = end + 1;
        return found;
    }

    std::vector<int64_t> numbers() {
        std::vector<int64_t> found;
        expect('[');
        if (comes(']')) return found;
        do {
            size_t used = 0;
            found.push_back(std::stoll(text_.substr(at_, 20), &used));
            at_ += used;
        } while (comes(','));
        expect(']');
        return found;
    }

    Entry entry() {
        Entry found;
        expect('{');
        do {
            const std::string key = string();
            expect(':');
            if (key == "dtype")
                found.dtype = string();
            else
                (key == "shape" ? found.shape : found.offsets) = numbers();
        } while (comes(','));
        expect('}');
        return found;
    }

private:
    std::string text_;
    size_t at_ = 0;
};

// The bytes from `begin` to `end` as numbers.
template <class T>
std::vector<T> copied(const std::string& bytes, size_t begin, size_t end) {
    if (end < begin || end > bytes.size() || (end - begin) % sizeof(T)) throw std::runtime_error("a tensor lies outside the file");
    std::vector<T> numbers((end - begin) / sizeof(T));
    if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data() + begin, end - begin);
    return numbers;
}

Tensor tensor_of(const Entry& entry, const std::string& bytes, size_t base) {
    if (entry.offsets.size() != 2) throw std::runtime_error("a tensor has no place in the file");
    const size_t begin = base + static_cast<size_t>(entry.offsets[0]), end = base + static_cast<size_t>(entry.offsets[1]);
    Tensor tensor;
    tensor.shape = entry.shape;
    if (entry.dtype == "F32")
        tensor.floats = copied<float>(bytes, begin, end);
    else if (entry.dtype == "F64")
        tensor.doubles = copied<double>(bytes, begin, end);
    else if (entry.dtype == "I64")
        tensor.integers = copied<int64_t>(bytes, begin, end);
    else if (entry.dtype == "U8")
        tensor.bytes = copied<uint8_t>(bytes, begin, end);
    else
        throw std::runtime_error("a tensor has dtype " + entry.dtype + ", which is not F32, F64, I64 or U8");
    return tensor;
}

}  // namespace

Vectors read_vectors(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    if (!file) throw std::runtime_error("cannot open " + path);
    const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    uint64_t length = 0;
    if (bytes.size() < sizeof length) throw std::runtime_error(path + " is no safetensors file");
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > bytes.size() - sizeof length) throw std::runtime_error(path + " ends inside its header");
    Scanner header(bytes.substr(sizeof length, length));
    Vectors vectors;
    header.expect('{');
    do {
        const std::string name = header.string();
        header.expect(':');
        const Entry entry = header.entry();
        const size_t family = name.find('/'), last = name.rfind('/');
        if (family == last) throw std::runtime_error(name + " is not family/case/tensor");
        Case& held = vectors[name.substr(0, family)][name.substr(family + 1, last - family - 1)];
        held[name.substr(last + 1)] = tensor_of(entry, bytes, sizeof length + length);
    } while (header.comes(','));
    return vectors;
}

}  // namespace statewell::test
