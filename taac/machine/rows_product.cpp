// Products of float32 matrices of which one has rows of zeros, which are left out; see rows_product.py.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/inductor/aoti_torch/generated/c_shim_cpu.h>

namespace {

// The library prepares a product for each number of rows, which takes long: they are rounded up to a multiple of this.
constexpr int64_t kStep = 16;

// A matrix as a tensor that is deleted with it.
struct View {
  AtenTensorHandle tensor = nullptr;
  AOTITorchError error;

  View(float* data, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride) {
    const int64_t sizes[] = {rows, columns}, strides[] = {row_stride, column_stride};
    error = aoti_torch_create_tensor_from_blob(data, 2, sizes, strides, 0, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, &tensor);
  }
  ~View() {
    if (tensor) aoti_torch_delete_tensor_object(tensor);
  }
};

// Memory that is kept, because new memory takes as long as a part of the product. It is aligned as tensors are, because the bits of a
// library's product can depend on that.
struct Memory {
  static constexpr int64_t kAlignment = 64;
  float* data = nullptr;
  int64_t size = 0;

  // Returns room for so many numbers, with whatever it holds; null if there is none.
  float* room(int64_t numbers) {
    if (numbers > size) {
      std::free(data);
      data = static_cast<float*>(std::aligned_alloc(kAlignment, (numbers * sizeof(float) + kAlignment - 1) / kAlignment * kAlignment));
      size = data ? numbers : 0;
    }
    return data;
  }
  ~Memory() { std::free(data); }
};

AOTITorchError product(float* out, View& x, View& y, int64_t rows, int64_t columns) {
  View result(out, rows, columns, columns, 1);
  return x.error || y.error || result.error || aoti_torch_cpu_mm_out(result.tensor, x.tensor, y.tensor);
}

bool is_zero(const float* row, int64_t inner) {
  return std::all_of(row, row + inner, [](float value) { return value == 0.0f; });
}

}  // namespace

// result[n] = x[n] y[n], for x [N, R, K] and y [N, K, C].
extern "C" __attribute__((visibility("default"))) AOTITorchError aoti_torch_cpu_product_of_rows(AtenTensorHandle x, AtenTensorHandle y,
                                                                                                AtenTensorHandle* result) {
  int64_t *x_sizes, *x_strides, *y_sizes, *y_strides;
  void *x_data, *y_data, *out_data;
  if (aoti_torch_get_sizes(x, &x_sizes) || aoti_torch_get_strides(x, &x_strides) || aoti_torch_get_sizes(y, &y_sizes) ||
      aoti_torch_get_strides(y, &y_strides) || aoti_torch_get_data_ptr(x, &x_data) || aoti_torch_get_data_ptr(y, &y_data))
    return 1;
  const int64_t batch = x_sizes[0], rows = x_sizes[1], inner = x_sizes[2], columns = y_sizes[2];
  const int64_t sizes[] = {batch, rows, columns}, strides[] = {rows * columns, columns, 1};
  if (aoti_torch_empty_strided(3, sizes, strides, aoti_torch_dtype_float32(), aoti_torch_device_type_cpu(), 0, result) ||
      aoti_torch_get_data_ptr(*result, &out_data))
    return 1;

  static thread_local Memory gathered, products;
  static thread_local std::vector<int64_t> used;
  for (int64_t n = 0; n < batch; ++n) {
    float* left = static_cast<float*>(x_data) + n * x_strides[0];
    float* out = static_cast<float*>(out_data) + n * strides[0];
    View right(static_cast<float*>(y_data) + n * y_strides[0], inner, columns, y_strides[1], y_strides[2]);
    used.clear();
    for (int64_t row = 0; row < rows; ++row)
      if (x_strides[2] != 1 || !is_zero(left + row * x_strides[1], inner)) used.push_back(row);
    const int64_t count = used.size(), padded = (count + kStep - 1) / kStep * kStep;
    if (padded * 4 > rows * 3) {  // too few to be worth the copies
      View all(left, rows, inner, x_strides[1], x_strides[2]);
      if (product(out, all, right, rows, columns)) return 1;
      continue;
    }
    float* some_products = nullptr;
    if (padded) {  // what the memory holds beyond the counted rows is multiplied, and not read
      float* some_rows = gathered.room(padded * inner);
      some_products = products.room(padded * columns);
      if (!some_rows || !some_products) return 1;
      for (int64_t i = 0; i < count; ++i) std::memcpy(some_rows + i * inner, left + used[i] * x_strides[1], inner * sizeof(float));
      View some(some_rows, padded, inner, inner, 1);
      if (product(some_products, some, right, padded, columns)) return 1;
    }
    for (int64_t row = 0, i = 0; row < rows; ++row) {
      if (i < count && used[i] == row)
        std::memcpy(out + row * columns, some_products + i++ * columns, columns * sizeof(float));
      else
        std::memset(out + row * columns, 0, columns * sizeof(float));
    }
  }
  return 0;
}
